"""The page: two drafters racing over one target."""

import os

# Gradio reads this when it is imported: unless it is switched off before, every launch calls home.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
