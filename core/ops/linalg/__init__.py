"""Matrix products, linear systems, decompositions and distances."""
