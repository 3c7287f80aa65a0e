"""The fault laboratory: breaks real processes in real ways, and judges the result with an independent record."""
