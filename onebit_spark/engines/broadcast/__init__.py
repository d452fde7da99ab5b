"""The factors are on the driver and are broadcast to all blocks.

block_work (in a task) ◄ exchange (how factors travel) ◄ engine
"""
