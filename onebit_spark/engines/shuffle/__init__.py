"""The factors are in tables. A block gets only the lines that it refers to. Nothing on the driver grows with the data.

numbering (ids)   sides (blocks) ◄ tables (stored, or held on the driver) ◄ posteriors, sign_matrix (start) ◄ engine
routes (how a block gets its lines)   steps (what it computes)   storage (of tables)   validation (held-out ratings)
"""
