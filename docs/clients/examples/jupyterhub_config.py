"""JupyterHub with systemdspawner: what a user runs in a notebook is a client of the MPS instance of his profile."""

from pathlib import Path

INSTANCES = {"small": "0", "large": "1"}
"""Which instance each profile stands for."""

# JupyterHub runs this file with that function in it.
c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.JupyterHub.spawner_class = "systemdspawner.SystemdSpawner"


def form(_spawner):
    options = "".join(f"<option>{profile}</option>" for profile in INSTANCES)
    return f'<label>GPU <select name="profile">{options}</select></label>'


def chosen(form_data):
    return {"profile": form_data["profile"][0]}


def wire(spawner):
    """Before a server starts: its variables are those of the instance, and its end goes through the daemon."""
    profile = spawner.user_options.get("profile", "small")
    if profile not in INSTANCES:
        raise ValueError(f"found the profile {profile!r}, expected one of {', '.join(INSTANCES)}")
    lines = Path(f"/etc/mps/{INSTANCES[profile]}.env").read_text().splitlines()
    variables = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    spawner.environment = {**spawner.environment, **variables}
    # The + runs it as root, whoever the user is; the - lets the server end whatever becomes of it.
    evict = f"-+/usr/local/bin/mpsctl evict --unit {spawner.unit_name}.service"
    spawner.unit_extra_properties = {**spawner.unit_extra_properties, "ExecStop": evict}


c.Spawner.options_form = form
c.Spawner.options_from_form = chosen
c.Spawner.pre_spawn_hook = wire
# With devices of its own (PrivateDevices=) a server has no GPU. All else that systemdspawner isolates is fine.
c.SystemdSpawner.isolate_devices = False
c.SystemdSpawner.isolate_tmp = True
c.SystemdSpawner.disable_user_sudo = True
