"""All settings, each declared once, and the precedence of the layers that set them."""
