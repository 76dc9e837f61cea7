"""Groups: functions and programs that run on many workers which communicate."""
