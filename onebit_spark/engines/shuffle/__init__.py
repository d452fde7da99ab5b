"""The factors are in files. A block gets only the lines that it refers to. Nothing on the driver grows with the data.

numbering (ids)   routes (lines between blocks) ◄ tables (in files)   steps (what a block computes)   ◄ engine
"""
