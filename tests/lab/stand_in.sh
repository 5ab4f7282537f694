#!/bin/sh
# Usage, in a mount namespace of its own: stand_in.sh FOLDER bare|full COMMAND …
# Runs a command on what looks like a machine with an NVIDIA driver: devices, programs and libraries of that name, which
# do nothing. "bare": the driver lies in /usr/local/nvidia, and there is no ssh, mmdebstrap or systemd-nspawn and no
# machine-id. "full": the driver is spread over the distribution's folders, and all tools are there.
set -eu
folder=$1 kind=$2
shift 2
mkdir -p "$folder"
mount -t tmpfs stand-in "$folder"
over() {
    mkdir -p "$folder/$1/upper" "$folder/$1/work"
    mount -t overlay -o "lowerdir=/$2,upperdir=$folder/$1/upper,workdir=$folder/$1/work" stand-in "/$2"
}
over dev dev
for name in nvidia0 nvidia1 nvidiactl nvidia-uvm; do
    mknod -m 0666 "/dev/$name" c 1 3
done
mkdir /dev/nvidia-caps
mknod -m 0400 /dev/nvidia-caps/nvidia-cap1 c 1 3
over local usr/local
if [ "$kind" = bare ]; then programs=/usr/local/nvidia/bin libraries=/usr/local/nvidia/lib64; else
    programs=/usr/local/bin libraries=/usr/local/lib
fi
mkdir -p "$programs" "$libraries"
gcc -shared -Wl,-soname,libcuda.so.1 -o "$libraries/libcuda.so.1" -x c /dev/null
printf '#!/bin/sh\necho a stand-in for nvidia-smi\n' >"$programs/nvidia-smi"
chmod 0755 "$programs/nvidia-smi"
if [ "$kind" = bare ]; then
    for tool in ssh ssh-keygen mmdebstrap systemd-nspawn; do
        path=$(command -v "$tool") && mount --bind /dev/null "$path"
    done
    : >"$folder/machine-id"
    mount --bind "$folder/machine-id" /etc/machine-id
else
    ldconfig -i -X -C "$folder/ld.so.cache"
    mount --bind "$folder/ld.so.cache" /etc/ld.so.cache
fi
exec "$@"
