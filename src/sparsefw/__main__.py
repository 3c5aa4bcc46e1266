"""python -m sparsefw"""

from sparsefw.cli import app

app()
