"""Factors in files, of which a block is sent the lines that it refers to: nothing on the driver grows with the data.

numbering (ids)   routes (lines between blocks) ◄ tables (in files)   steps (what a block computes)   ◄ engine
"""
