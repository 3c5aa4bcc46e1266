"""Charts: their description as data, and their drawing, by matplotlib for files and by Plotly in a page."""
