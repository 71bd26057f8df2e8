#!/bin/sh
# oci-archive.sh BUSYBOX OUT [MORE]: an OCI archive of one image with busybox in it, and a few of its names; and what lies in MORE.
set -eu
busybox=$1 out=$(realpath -m "$2")
more=${3:+$(realpath "$3")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p layer/bin layer/tmp layout/blobs/sha256
chmod 1777 layer/tmp
cp "$busybox" layer/bin/busybox
for name in sh cat cp echo gzip head ln mkdir seq sha256sum sleep tar touch yes; do ln -s busybox "layer/bin/$name"; done
[ -z "$more" ] || cp -r "$more/." layer/
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C layer -cf layer.tar .

# blob FILE: puts it into the layout; its digest and size as JSON.
blob() {
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    size=$(stat -c %s "$1")
    cp "$1" "layout/blobs/sha256/$digest"
    printf '"digest":"sha256:%s","size":%s' "$digest" "$size"
}

layer=$(blob layer.tar)
diff=$(sha256sum layer.tar | cut -d' ' -f1)
printf '{"architecture":"amd64","os":"linux","config":{"Cmd":["/bin/sh"],"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$diff" >config
config=$(blob config)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",%s}]}' "$config" "$layer" >manifest
manifest=$(blob manifest)
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",%s}]}' "$manifest" >layout/index.json
printf '{"imageLayoutVersion":"1.0.0"}' >layout/oci-layout
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C layout -cf "$out" oci-layout index.json blobs
