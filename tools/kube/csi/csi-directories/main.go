// A CSI driver for tests: a volume is a directory, a snapshot a copy of one, and a mount a bind mount. One process is
// controller and node, and registers itself with the kubelet. Not for use with data of value.
//
//	directories -endpoint /csi/csi.sock -data DIR -node NAME -registry /var/lib/kubelet/plugins_registry
//
// A file DIR/faults/METHOD, such as CreateSnapshot, makes that method fail while it exists: its first line is the error,
// or "hang" for no answer, and its second line, if there is one, a part of the name or id of the objects concerned.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "directories.test.trainyard.io"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	data, node, endpoint string
}

func main() {
	endpoint := flag.String("endpoint", "/run/csi.sock", "socket of the driver")
	data := flag.String("data", "", "directory of volumes and snapshots")
	node := flag.String("node", "", "name of this node; empty: a controller alone")
	registry := flag.String("registry", "/var/lib/kubelet/plugins_registry", "where kubelets find plugins")
	flag.Parse()
	served := &driver{data: *data, node: *node, endpoint: *endpoint}
	for _, folder := range []string{"volumes", "snapshots", "faults"} {
		must(os.MkdirAll(filepath.Join(*data, folder), 0o777))
	}
	if *node != "" {
		must(os.MkdirAll(*registry, 0o755))
		server := grpc.NewServer()
		registration.RegisterRegistrationServer(server, served)
		go serve(server, filepath.Join(*registry, name+".sock"))
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(served.failing))
	csi.RegisterIdentityServer(server, served)
	csi.RegisterControllerServer(server, served)
	csi.RegisterNodeServer(server, served)
	serve(server, *endpoint)
}

func serve(server *grpc.Server, path string) {
	_ = os.Remove(path)
	listener, err := net.Listen("unix", path)
	must(err)
	must(server.Serve(listener))
}

// failing answers a call as the file of its method in the directory of faults says, if there is one.
func (d *driver) failing(
	ctx context.Context, in any, about *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	for {
		text, err := os.ReadFile(filepath.Join(d.data, "faults", filepath.Base(about.FullMethod)))
		words, part, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		if err != nil || !strings.Contains(keyOf(in), part) {
			return handler(ctx, in)
		}
		if words != "hang" {
			return nil, status.Error(codes.Internal, words)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// keyOf returns the name or id of what a call makes, changes or deletes.
func keyOf(in any) string {
	switch about := in.(type) {
	case interface{ GetName() string }:
		return about.GetName()
	case interface{ GetSnapshotId() string }:
		return about.GetSnapshotId()
	case interface{ GetVolumeId() string }:
		return about.GetVolumeId()
	}
	return ""
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Registration with the kubelet

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *driver) NotifyRegistrationStatus(
	context.Context, *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	return &registration.RegistrationStatusResponse{}, nil
}

// Identity

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	controller := &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
	}
	online := &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
	}
	return &csi.GetPluginCapabilitiesResponse{
		Capabilities: []*csi.PluginCapability{{Type: controller}, {Type: online}},
	}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// Controller

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	var found []*csi.ControllerServiceCapability
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		rpc := &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}}
		found = append(found, &csi.ControllerServiceCapability{Type: rpc})
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: found}, nil
}

func (d *driver) CreateVolume(_ context.Context, in *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if words := in.GetParameters()["refuse"]; words != "" {
		return nil, status.Error(codes.ResourceExhausted, words)
	}
	source := in.GetVolumeContentSource()
	from := ""
	if snapshot := source.GetSnapshot(); snapshot != nil {
		from = filepath.Join(d.data, "snapshots", snapshot.GetSnapshotId())
	} else if volume := source.GetVolume(); volume != nil {
		from = filepath.Join(d.data, "volumes", volume.GetVolumeId())
	}
	if err := d.fill(filepath.Join(d.data, "volumes", in.GetName()), from); err != nil {
		return nil, err
	}
	made := &csi.Volume{
		VolumeId: in.GetName(), CapacityBytes: in.GetCapacityRange().GetRequiredBytes(), ContentSource: source,
	}
	return &csi.CreateVolumeResponse{Volume: made}, nil
}

func (d *driver) DeleteVolume(_ context.Context, in *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(filepath.Join(d.data, "volumes", filepath.Base(in.GetVolumeId())))
}

func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, in *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	confirmed := &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: in.GetVolumeCapabilities()}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: confirmed}, nil
}

func (d *driver) ControllerExpandVolume(
	_ context.Context, in *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: in.GetCapacityRange().GetRequiredBytes()}, nil
}

// A class of snapshots says with its parameters how they fail: "refuse" is the error of every one.
func (d *driver) CreateSnapshot(
	_ context.Context, in *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	if words := in.GetParameters()["refuse"]; words != "" {
		return nil, status.Error(codes.Internal, words)
	}
	target := filepath.Join(d.data, "snapshots", in.GetName())
	if err := d.fill(target, filepath.Join(d.data, "volumes", in.GetSourceVolumeId())); err != nil {
		return nil, err
	}
	// The modification time of this file is when the driver had the snapshot ready.
	if err := os.WriteFile(target+".ready", nil, 0o666); err != nil {
		return nil, err
	}
	found, err := os.Stat(target + ".ready")
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: in.GetName(), SourceVolumeId: in.GetSourceVolumeId(), ReadyToUse: true,
		CreationTime: timestamppb.New(found.ModTime()), SizeBytes: 1 << 20,
	}}, nil
}

func (d *driver) DeleteSnapshot(
	_ context.Context, in *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	target := filepath.Join(d.data, "snapshots", filepath.Base(in.GetSnapshotId()))
	_ = os.Remove(target + ".ready")
	return &csi.DeleteSnapshotResponse{}, os.RemoveAll(target)
}

// fill makes a directory, empty or of what another one holds; one that is there already stays as it is.
func (d *driver) fill(target, source string) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	part := target + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if source != "" {
		if out, err := exec.Command("cp", "-a", source, part).CombinedOutput(); err != nil {
			return status.Error(codes.Internal, strings.TrimSpace(string(out)))
		}
	} else if err := os.Mkdir(part, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(part, 0o777); err != nil {
		return err
	}
	return os.Rename(part, target)
}

// Node

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodePublishVolume(
	_ context.Context, in *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	target := in.GetTargetPath()
	if err := os.MkdirAll(target, 0o755); err != nil {
		return nil, err
	}
	source := filepath.Join(d.data, "volumes", filepath.Base(in.GetVolumeId()))
	if isMounted(target) {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := syscall.Mount(source, target, "", syscall.MS_BIND, ""); err != nil {
		return nil, err
	}
	if in.GetReadonly() {
		flags := uintptr(syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY)
		return &csi.NodePublishVolumeResponse{}, syscall.Mount("", target, "", flags, "")
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(
	_ context.Context, in *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	for end := time.Now().Add(10 * time.Second); isMounted(in.GetTargetPath()) && time.Now().Before(end); {
		if err := syscall.Unmount(in.GetTargetPath(), syscall.MNT_DETACH); err != nil {
			return nil, err
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(in.GetTargetPath())
}

func isMounted(path string) bool {
	mounts, err := os.ReadFile("/proc/self/mounts")
	return err == nil && strings.Contains(string(mounts), " "+path+" ")
}
