"""Programs that train over clients generated from the OpenAPI document. `tests.end_to_end.test_generated_clients` makes
the clients and runs the programs: `digits.py` over openapi-python-client, `digits.ts` over openapi-typescript.
"""
