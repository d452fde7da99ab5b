"""Where the map steps run: in this process (local), or on a Spark cluster (broadcast/, shuffle/).

layout, cells, faults ◄ blocking      mapstep, start, factorframes     (what all engines share)
    ◄ local, broadcast/, shuffle/ ◄ choice (which one a fit takes), validation (held-out ratings watched)
"""
