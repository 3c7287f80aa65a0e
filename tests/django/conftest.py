"""The modules in `project` are a Django project's own tests: Django's test runner runs them, in test_project.py."""

collect_ignore = ["project"]
