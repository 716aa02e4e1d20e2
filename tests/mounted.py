"""Disks that are read-only or small: mounts that only one command sees."""

import subprocess


def can_mount():
    """Return whether this user may mount in a name space of its own."""
    try:
        return (
            subprocess.run(
                with_mounts("mount -t tmpfs none /mnt", "true"), capture_output=True
            ).returncode
            == 0
        )
    except FileNotFoundError:
        return False


def with_mounts(script, *command):
    """Return the words of a command that runs after a shell script that mounts."""
    before = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh"]
    return [*before, *command]
