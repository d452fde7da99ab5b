"""report.html: one page per fit, in a file that needs no other. figures (plots as SVG) ◄ page (the document)."""
