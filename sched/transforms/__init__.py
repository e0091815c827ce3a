"""Programs to programs: vocabulary passes, explicit communication, the step's end."""
