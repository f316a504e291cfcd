"""Events and users to day partials, and day partials to the interest state."""
