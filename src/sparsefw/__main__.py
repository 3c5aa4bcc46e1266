"""python -m sparsefw"""

from sparsefw.cli import run

run()
