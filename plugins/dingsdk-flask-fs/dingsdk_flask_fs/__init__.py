"""The flask_fs transport: messages over authenticated HTTP, payloads through a shared folder."""
