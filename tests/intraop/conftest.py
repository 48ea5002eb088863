"""Its presence puts this folder on the import path, so that tests below it can import `small_problems`."""
