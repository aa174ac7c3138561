"""Open sessions and tapes, as the API process knows them."""
