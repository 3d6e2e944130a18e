"""The script that Streamlit runs at every change of the page."""

from clozify.studio.page import draw_page
from clozify.studio.server import current_project

draw_page(current_project())
