"""The explorer: trained runs on a local web page (extra ``explore``).

From the inside out: ``schemas`` (what goes over the wire), ``pictures`` (bytes to grey levels), ``look`` (one pass, taken
apart), ``survey`` (what a network did on its test images), ``net`` (one run), ``away`` (one whose images are not at hand),
``views`` (what is asked of it), ``worker`` (one thread runs every network, requests together), ``explorer`` (all runs),
``guard`` (who may ask, how much), ``app`` (the routes), ``server`` (address and port). The page itself is in ``static``.
"""
