"""The node's metrics: counted where things happen, and rendered as text on request, in slices."""
