"""The factors are in tables. A block gets only the lines that it refers to. Nothing on the driver grows with the data.

numbering (ids)   routes (lines between blocks) ◄ tables ◄ storage (in files)   steps (what a block computes)   ◄ engine
"""
