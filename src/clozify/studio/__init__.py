"""The page behind `clozify studio`: its logic (draft, look, runs, session) and what shows it (render, view, server)."""
