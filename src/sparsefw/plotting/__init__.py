"""Charts: how they are described, and how they are drawn by matplotlib for files and by Plotly in a page."""
