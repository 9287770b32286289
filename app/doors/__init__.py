"""Ways in besides an API key in a header: a cookie, a stream ticket, a gateway that is trusted."""
