"""The engines: they run the map steps in this process (local) or on a Spark cluster (broadcast/, shuffle/).

layout, block_frames, faults ◄ blocking      map_step, start, factor_frames     (what all engines share)
    ◄ local, broadcast/, shuffle/ ◄ choice (which one a fit takes), validation (loss on held-out ratings)
"""
