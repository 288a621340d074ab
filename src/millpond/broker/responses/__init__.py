"""Parts of responses that several APIs share."""
