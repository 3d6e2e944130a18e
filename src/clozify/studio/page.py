"""The script that Streamlit runs at every change of the page."""

from clozify.studio.server import current
from clozify.studio.view import show

show(current())
