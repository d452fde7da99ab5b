"""The factors are on the driver and are broadcast to all blocks.

blockwork (in a task) ◄ exchange (how factors travel) ◄ engine
"""
