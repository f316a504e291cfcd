"""Objects by key: whole or not at all, durable, compared before they are replaced; and files below."""
