"""`mmspec serve --engine ray`: the server's application in several replicas behind one address, by Ray Serve. Needs `mmspec[ray]`."""
