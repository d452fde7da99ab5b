"""The factors are in files. A block gets only the lines that it refers to. Nothing on the driver grows with the data.

numbering (ids)   sides (blocks, cached) ◄ tables (in files, or held on the driver) ◄ posteriors, signmatrix ◄ engine
routes (how a block gets its lines)   steps (what it computes)   watched (held-out ratings)
"""
