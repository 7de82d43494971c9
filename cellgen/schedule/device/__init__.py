"""Schedules over time lowered for devices that launch kernels, as values; nothing is spelled.

``lower`` plans a function: ``over_time`` what options need, ``states`` and ``step_places`` where
buffers lie at every step, ``stacked`` which products are one, ``begun`` which sums a loop begins,
``steps`` and ``deferred`` what is launched, ``tiers`` whether all steps run in one launch.
``places`` and ``stages`` are the values that they make, and ``plan`` the whole, which targets
spell. ``verify`` follows it, by what ``accesses`` says that stages touch, ``panels`` its packed
weights.
"""
