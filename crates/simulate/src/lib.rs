//! What harvesting would give a site, before anybody switches it on: the policy of `dayfly-harvest` over virtual time.
