"""What commands do beside the stages of a night: look at a site, try it, change its past."""
