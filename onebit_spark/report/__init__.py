"""report.html: one self-contained page a fit.

diagnostics (what is measured, in Spark) ─► figures (plots as SVG) ─► page (the document)
"""
