"""report.html: one self-contained page for each fit. figures (plots as SVG) ◄ page (the document)."""
