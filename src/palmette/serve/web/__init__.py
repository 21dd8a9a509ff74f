"""The gateway's HTTP: addresses, answers, streams and the page."""
