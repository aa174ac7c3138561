"""What requests and answers look like, as strict models: the source of the OpenAPI document."""
