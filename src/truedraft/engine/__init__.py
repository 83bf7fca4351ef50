"""Scheduler and step: tensors live only below StepPlan and above StepResult."""
