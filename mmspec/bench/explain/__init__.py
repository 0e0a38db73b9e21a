"""Why a drafter is not faster, or not accepted: what is measured, and the causes that explain it."""
