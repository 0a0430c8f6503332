"""The explorer: trained runs on a local web page (extra ``explore``).

From the inside out: ``pictures`` (bytes to grey levels, scenes to what a network takes), ``net`` (what is asked of one run),
``survey`` (what it did on its test images), ``worker`` (one thread runs every network, requests together), ``guard`` (who may
ask, how much), ``app`` (the routes), ``server`` (address and port). ``schemas`` is what goes over the wire; the page
itself is in ``static``.
"""
