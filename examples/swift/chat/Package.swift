// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "chat",
    platforms: [.macOS(.v14)],
    dependencies: [.package(name: "MLXGen", path: "../../../bindings/swift")],
    targets: [
        .executableTarget(
            name: "chat", dependencies: [.product(name: "MLXGen", package: "MLXGen")]),
        .executableTarget(
            name: "minimal", dependencies: [.product(name: "MLXGen", package: "MLXGen")]),
    ],
    swiftLanguageModes: [.v6]
)
