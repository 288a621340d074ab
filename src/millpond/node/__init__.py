"""The real implementations of the ports: sockets, files, the clock, threads; and the process that runs a broker on
them."""
